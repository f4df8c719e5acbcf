-- read_entry.lua: what the queue knows of an entry that is about to end. Changes nothing.
-- ARGV[6] seq   returns {published_at_ms or '' where it is not in flight, attempts or '', how it has ended or '', '1' where an earlier
-- publish of it may be under way, or '0'}
local held = redis.call('HMGET', INFLIGHT, 'seq', 'published_at', 'attempts')
local is_held = held[1] == ARGV[6]
local attempts = is_held and held[3] or redis.call('HGET', ATTEMPTS, ARGV[6]) or ''
return {is_held and held[2] or '', attempts, redis.call('ZSCORE', DONE, ARGV[6]) or '',
  sent_lately(redis.call('HGET', PRESENCE, SENT)) == ARGV[6] and '1' or '0'}
