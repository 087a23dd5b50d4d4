package main

// Go has these itself since 1.21; Debian 12 comes with 1.19.

type number interface{ ~int | ~int64 | ~uint64 }

func min[T number](a, b T) T {
	if a < b {
		return a
	}
	return b
}

func max[T number](a, b T) T {
	if a > b {
		return a
	}
	return b
}
