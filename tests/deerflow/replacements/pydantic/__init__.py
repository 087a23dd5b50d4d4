"""As much of pydantic 2 as DeerFlow's sandbox configuration needs, where pydantic is not installed.

Fields with defaults, the bounds gt, ge, lt, le and allow_inf_nan, literals, extra names kept.
Validators are accepted and not run, so a suite about validation needs the real package.
"""

from __future__ import annotations

import math
import operator
import typing

_NOTHING = object()
_BOUNDS = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}


class ValidationError(ValueError):
    """A value that a field does not take."""


class FieldInfo:
    def __init__(self, default=_NOTHING, *, default_factory=None, **options):
        self.default = _NOTHING if default is Ellipsis else default
        self.default_factory = default_factory
        self.options = options

    def initial(self):
        return self.default_factory() if self.default_factory is not None else self.default

    def refusal(self, value, hint) -> str | None:
        """What is wrong with a value, or None."""
        if typing.get_origin(hint) is typing.Literal and value not in typing.get_args(hint):
            return f"is none of {typing.get_args(hint)}"
        if isinstance(value, float) and not math.isfinite(value) and \
                self.options.get("allow_inf_nan") is False:
            return "is not finite"
        for name, holds in _BOUNDS.items():
            bound = self.options.get(name)
            if bound is not None and value is not None and not holds(value, bound):
                return f"is not {name} {bound}"
        return None


def Field(default=_NOTHING, **options):
    return FieldInfo(default, **options)


PrivateAttr = Field


def ConfigDict(**options):
    return options


def _is_field(name, annotation) -> bool:
    return not name.startswith("_") and name != "model_config" and "ClassVar" not in str(annotation)


class _Model(type):
    def __new__(mcls, name, bases, body, **_):
        cls = super().__new__(mcls, name, bases, body)
        fields = {}
        for base in reversed(cls.__mro__[1:]):
            fields.update(vars(base).get("model_fields", {}))
        for field, annotation in body.get("__annotations__", {}).items():
            if _is_field(field, annotation):
                value = body.get(field, _NOTHING)
                fields[field] = value if isinstance(value, FieldInfo) else FieldInfo(value)
        cls.model_fields = fields
        return cls


class BaseModel(metaclass=_Model):
    model_config: typing.ClassVar[dict] = {}

    def __init__(self, **given):
        try:
            hints = typing.get_type_hints(type(self))
        except Exception:
            hints = {}
        values = dict(given)
        for name, field in type(self).model_fields.items():
            alias = field.options.get("alias")
            value = values.pop(alias, _NOTHING) if alias else _NOTHING
            value = values.pop(name, value)
            value = field.initial() if value is _NOTHING else value
            if value is _NOTHING:
                raise ValidationError(f"{type(self).__name__}.{name} is missing")
            if hints.get(name) is float and type(value) is int:
                value = float(value)
            refusal = field.refusal(value, hints.get(name))
            if refusal:
                raise ValidationError(f"{type(self).__name__}.{name}: {value!r} {refusal}")
            setattr(self, name, value)
        for name, value in values.items():
            setattr(self, name, value)
        self.model_extra = values
        self.model_fields_set = set(given)

    @classmethod
    def model_validate(cls, data, **_):
        return data if isinstance(data, cls) else cls(**data)

    @classmethod
    def model_construct(cls, **values):
        model = cls.__new__(cls)
        vars(model).update(values)
        return model

    @classmethod
    def model_rebuild(cls, *_, **__):
        return None

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def model_dump(self, **_):
        return {name: getattr(self, name) for name in type(self).model_fields}

    def model_copy(self, *, update=None, **_):
        return self.model_construct(**{**vars(self), **(update or {})})


class RootModel(BaseModel):
    pass


class SecretStr(str):
    def get_secret_value(self):
        return str(self)


class TypeAdapter:
    def __init__(self, kind):
        self.kind = kind

    def validate_python(self, value, **_):
        return value


def create_model(name, **_):
    return _Model(name, (BaseModel,), {})


def _no_validator(*arguments, **options):
    is_decorating = len(arguments) == 1 and callable(arguments[0]) and not options
    return arguments[0] if is_decorating else lambda function: function


field_validator = model_validator = field_serializer = model_serializer = _no_validator
computed_field = validator = root_validator = validate_call = _no_validator


def __getattr__(name):
    """Any other name: a class that takes whatever it is given."""
    if name.startswith("__"):
        raise AttributeError(name)

    def take_anything(self, *_, **__):
        pass

    return type(name, (), {"__init__": take_anything,
                           "__class_getitem__": classmethod(lambda cls, _: cls)})
