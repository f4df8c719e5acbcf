-- ecq_expire.lua: remove messages that are pending in the lake although their retention has passed, and advance the position.
-- Messages that are in flight, or whose publish may be under way, stay; so do acknowledged messages, because the lake just lacks
-- their records.
-- ARGV[6…] seqs   returns the seqs that have expired; a message that is not in the queue counts as expired
local held_seq, sent_seq = redis.call('HGET', INFLIGHT, 'seq'), sent_lately(redis.call('HGET', PRESENCE, SENT))
local has_messages = redis.call('EXISTS', COMPACTION, INFLIGHT) > 0
local expired, pending = {}, {}
for i = 6, #ARGV do
  local seq = ARGV[i]
  if seq ~= held_seq and seq ~= sent_seq and not redis.call('ZSCORE', DELIVERED, seq) then
    expired[#expired + 1] = seq
    if has_messages then advance(seq, ARGV[1]) end -- an empty queue has no position
    if redis.call('ZSCORE', PENDING, seq) then pending[#pending + 1] = seq end
  end
end
if #pending > 0 then
  redis.call('HSET', STATE, 'expired_at', ARGV[1])
  remove_messages(pending)
end
return expired
