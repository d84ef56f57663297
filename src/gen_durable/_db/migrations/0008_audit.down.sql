-- The level of the audit. What was written stays.
drop function gen_durable.set_audit(text, text);
drop table gen_durable.settings;
drop type gen_durable.audit_level;
