/* Gives each file that is named to a fuzz target, once: the corpus as a regression test, where
 * there is no libFuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define INPUT_LEN_MAX (16u * 1024u * 1024u)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    uint8_t *data = malloc(INPUT_LEN_MAX);
    size_t len = data != NULL ? fread(data, 1, INPUT_LEN_MAX, file) : 0;
    int failed = data == NULL || ferror(file);
    (void)fclose(file);
    if (!failed) {
        (void)LLVMFuzzerTestOneInput(data, len);
    }
    free(data);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = argc < 2; /* a corpus that is not there proves nothing */
    for (int i = 1; i < argc; i++) {
        failed |= replay(argv[i]);
    }
    (void)printf("%d inputs\n", argc - 1);
    return failed;
}
