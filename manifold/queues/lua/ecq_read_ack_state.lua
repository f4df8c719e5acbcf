-- ecq_read_ack_state.lua: read what the record of an acknowledgement needs. Changes nothing.
-- ARGV[6] seq   returns {epoch, is acknowledged, an earlier publish may be under way, is pending}; the last three are '1' or '0'
local is_pending = redis.call('ZSCORE', PENDING, ARGV[6])
local is_known = not is_pending and redis.call('ZSCORE', DELIVERED, ARGV[6])
return {redis.call('HGET', STATE, 'epoch') or '0', is_known and '1' or '0',
  sent_lately(redis.call('HGET', PRESENCE, SENT)) == ARGV[6] and '1' or '0', is_pending and '1' or '0'}
