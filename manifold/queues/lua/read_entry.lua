-- read_entry.lua: read the state of an entry that is about to end. Changes nothing.
-- ARGV[6] seq
-- returns {published_at_ms or '' if it is not in flight, attempts or '', code of the outcome or '', '1' if an earlier publish may
-- be under way, else '0'}
local held = redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts')
local is_held = held[1] == ARGV[6]
local attempts = is_held and held[3] or redis.call('HGET', ATTEMPTS, ARGV[6]) or ''
return {is_held and held[2] or '', attempts, redis.call('ZSCORE', DONE, ARGV[6]) or '',
  sent_lately(redis.call('HGET', PRESENCE, SENT)) == ARGV[6] and '1' or '0'}
