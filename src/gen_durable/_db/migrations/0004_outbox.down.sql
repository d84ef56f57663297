drop table gen_durable.outbox;
