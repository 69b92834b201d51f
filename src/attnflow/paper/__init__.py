"""Reproduction of the paper's experiments and of questions they raise; each module measures and reports one."""
