"""Flower's strategies on given models of clients."""

import numpy as np
from exchange import main
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # messages have them


def rounds(options, x0, models, samples):
    """models: (rounds, members, d) of each round; the server's model after each round, (rounds, d)."""
    strategy = getattr(strategies, options["class"])(fraction_train=0.0, **options["arguments"])
    x, found = ArrayRecord({"x": Array(x0)}), []
    for number, uploads in enumerate(models, 1):
        strategy.configure_train(number, x, ConfigRecord(), None)
        replies = []
        for upload, count in zip(uploads, samples, strict=True):
            content = {"arrays": ArrayRecord({"x": Array(upload)}), "m": MetricRecord({"num-examples": int(count)})}
            replies.append(Message(RecordDict(content), dst_node_id=0, message_type="train"))
        x, _ = strategy.aggregate_train(number, replies)
        found.append(x["x"].numpy())
    return {"models": np.array(found)}


main({"rounds": rounds})
