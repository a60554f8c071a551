"""Runs the migrations on the connection that `genesis_fp16.store.database` hands over."""

from __future__ import annotations

from alembic import context

from genesis_fp16.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
