-- ecq_expire.lua: messages that the lake has as pending past their retention leave the queue for good, and the position moves on. What is in
-- flight, or may be on its way to the client, stays; so does what was acknowledged: its record is on its way to the lake.
-- ARGV[6…] their seqs   returns those that have expired; one that is not in the queue has, too
local held, sent = redis.call('HGET', INFLIGHT, 'seq'), sent_lately(redis.call('HGET', PRESENCE, SENT))
local expired, queued, is_known = {}, {}, redis.call('EXISTS', COMPACTION, INFLIGHT) > 0
for i = 6, #ARGV do
  local seq = ARGV[i]
  if seq ~= held and seq ~= sent and not redis.call('ZSCORE', DELIVERED, seq) then
    expired[#expired + 1] = seq
    if is_known then advance(seq, ARGV[1]) end
    if redis.call('ZSCORE', PENDING, seq) then queued[#queued + 1] = seq end
  end
end
if #queued > 0 then
  redis.call('HSET', STATE, 'expired_at', ARGV[1])
  forget(queued)
end
return expired
