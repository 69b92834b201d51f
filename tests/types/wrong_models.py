"""Errors that a type checker must report: each marked line fails with that code, and no other line fails."""

import attnflow as af

model = af.load("bert-base-uncased")
trace = model.trace("the key")

a: list[af.Trace] = model.trace("the key")  # error: assignment
b: af.Trace = model.trace(["the key"])  # error: assignment
c: af.Trace = model.trace("the key", memory="linear")  # error: assignment
model.trace("the key", memory="quadratic")  # error: call-overload
trace.flows()  # error: attr-defined
print(trace.flow(query="[CLS]").value)  # error: attr-defined
trace.rollout().save(3)  # error: arg-type
trace.rollout(residual="half")  # error: arg-type
model.trace(["the key"]).rollout()  # error: attr-defined
model.blank_out(["the key"]).show()  # error: attr-defined
