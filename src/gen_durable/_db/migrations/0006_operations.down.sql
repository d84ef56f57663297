-- Nobody knows any more who works here, and no queue is paused.
drop function gen_durable.set_queue(text, int, text);
drop function gen_durable.resume_queue(text, text);
drop function gen_durable.pause_queue(text, text);
drop table gen_durable.queues, gen_durable.workers;
