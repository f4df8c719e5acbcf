-- ecq_read_ack_state.lua: what the record of an acknowledgement needs to say, before it is made. Changes nothing.
-- ARGV[6] seq   returns {epoch, '1' where the message was acknowledged before, or '0', '1' where an earlier publish of it may be under way,
-- or '0'}
local is_known = not redis.call('ZSCORE', PENDING, ARGV[6]) and redis.call('ZSCORE', DELIVERED, ARGV[6])
return {redis.call('HGET', STATE, 'epoch') or '0', is_known and '1' or '0',
  sent_lately(redis.call('HGET', PRESENCE, SENT)) == ARGV[6] and '1' or '0'}
