"""``tern pipeline NAME …``: Spark jobs on topics, one module per pipeline (U4, U5)."""

from __future__ import annotations

from ternmq.cli.command import Commands, Destructive
from ternmq.cli.pipelines import archive, deadletters, rebuild, reconcile, replay, sql, trace

app = Commands(
    no_args_is_help=True,
    help=(
        "Run a Spark job on topics.\n\nJobs run on this machine (local[*]) unless --master names a Spark "
        "cluster. Ctrl-C stops a job cleanly. A stream continues from its checkpoint when it is started again."
    ),
)


@app.callback()
def pipeline() -> None:
    """Makes it a group of commands even if there is only one."""


app.command()(archive.archive)
app.command()(archive.compact)
app.command()(replay.replay)
app.command()(sql.sql)
app.command()(trace.trace)
app.command()(deadletters.deadletters)
app.command()(reconcile.reconcile)
app.command(cls=Destructive)(rebuild.rebuild)
