"""A final answer of a known shape: what is asked of the model, and what is made of its words.

    shape     a schema, or a Python type: reads an answer, or says what is wrong with it
    roads     how the shape is put to the model: by the API, by a tool, or in words
    api       the part of JSON schema that the API holds a model to

Nothing here talks to a model: the broker asks, and asks again where an answer does not fit.
"""
