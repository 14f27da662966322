"""Other layouts of the same functions, and pretrained softmax models, to and from ours."""
