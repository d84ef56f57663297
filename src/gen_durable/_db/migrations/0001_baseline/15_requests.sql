-- Changes that a caller of the dashboard's API has sent with an Idempotency-Key, with their answers. A row belongs to the transaction
-- of its change: both are stored, or neither. So a request that is sent again gets the first answer, and changes nothing. The primary
-- key lets a second request wait until the first has ended. A request that failed has no row. The collector deletes old rows.
create table gen_durable.answered_requests (
  actor       text collate "C" not null,                  -- the authenticated user who sent it
  key         text collate "C" not null,                  -- of the header
  digest      bytea not null,                             -- SHA-256 of method, path and body: the key is for this request only
  answer      text,                                       -- JSON; null: the transaction of the change has not stored it yet
  answered_at timestamptz not null default statement_timestamp(),
  primary key (actor, key)
) with (fillfactor = 50);
create index answered_requests_old on gen_durable.answered_requests (answered_at);
