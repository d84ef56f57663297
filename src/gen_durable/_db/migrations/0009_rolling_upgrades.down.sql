-- Workers no longer say which code they run.
alter table gen_durable.workers drop column schema_version;
