-- ecq_read_ack_state.lua: read what the record of an acknowledgement needs. Changes nothing.
-- ARGV[6] seq   returns {epoch, is acknowledged, an earlier publish may be under way, is pending}; the last three are '1' or '0'
local seq = ARGV[6]
local is_pending = redis.call('ZSCORE', PENDING, seq)
local is_acknowledged = not is_pending and redis.call('ZSCORE', DELIVERED, seq)
local epoch = redis.call('HGET', STATE, 'epoch') or '0'
local is_sent = sent_lately(redis.call('HGET', PRESENCE, SENT)) == seq
return {epoch, is_acknowledged and '1' or '0', is_sent and '1' or '0', is_pending and '1' or '0'}
