"""What a request may ask for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Position = Annotated[int, Field(strict=True, ge=0)]


class Input(BaseModel):
    """What a model reads."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="The name of one of /api/models.", examples=["verb-number"])
    text: str | None = Field(None, description="For models of text.", examples=["the key to the cabinets"])
    pair: str | None = Field(None, description="A second text, for models that read pairs.")
    target: str | None = Field(
        None, description="For encoder-decoders: what the decoder writes; its own answer if not given."
    )
    image: str | None = Field(
        None, description="For models of images: a PNG or JPEG file in base64, with or without the head of a data URL."
    )
    truncate: bool = Field(False, strict=True, description="Cut a text that is too long for the model.")


class ExplainRequest(Input):
    """A text or an image to explain."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "verb-number", "text": "the key to the cabinets"}]}
    )

    query: Position | None = Field(None, description="The position to explain first; the one that answers by default.")
    importance: list[Literal["gradient", "blank-out"]] = Field(
        ["gradient", "blank-out"],
        max_length=2,
        description="What tokens are worth to the answer, and by which measures.",
    )


class RowsRequest(Input):
    """One query of an input, for a page that does not hold it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "verb-number", "text": "the key to the cabinets", "unit": "subwords", "query": 5}]
        }
    )

    unit: Literal["subwords", "words"]
    query: Position = Field(description="A position among all tokens, or all words, of the input.")


class PathsRequest(RowsRequest):
    """One pair of a hidden state and an input token."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "verb-number", "text": "the key to the cabinets", "unit": "subwords", "query": 0, "layer": 5,
                    "token": 2,
                }
            ]
        }
    )  # fmt: skip

    layer: Position = Field(description="The layer of the hidden state, from 0.")
    token: Position = Field(description="The position of the input token.")
