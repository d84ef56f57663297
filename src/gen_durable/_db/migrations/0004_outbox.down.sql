drop table gen_durable.received_messages;
drop table gen_durable.outbox;
