-- read_entry.lua: read the state of an entry that is about to end. Changes nothing.
-- ARGV[6] seq
-- returns {published_at_ms or '' if it is not in flight, attempts or '', code of the outcome or '', '1' if an earlier publish may
-- be under way, else '0'}
local seq = ARGV[6]
local held_seq, held_published_at, held_attempts = unpack(redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts'))
local is_in_flight = held_seq == seq
local published_at = is_in_flight and held_published_at
local attempts = is_in_flight and held_attempts or redis.call('HGET', ATTEMPTS, seq)
local outcome = redis.call('ZSCORE', DONE, seq)
local is_sent = sent_lately(redis.call('HGET', PRESENCE, SENT)) == seq
return {published_at or '', attempts or '', outcome or '', is_sent and '1' or '0'}
