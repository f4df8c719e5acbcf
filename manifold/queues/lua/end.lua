-- end.lua: end entries without an acknowledgement, because they have expired or were cancelled. An entry in flight may have
-- reached the vehicle, so it stays; if it is not acknowledged, it gets the given outcome instead of being sent again. A released
-- entry whose publish may be under way counts as in flight.
-- KEYS[8] the outcomes stream; absent in a cluster, where it is in another slot
-- ARGV[6] '1' to claim the next entry
-- then, for each entry: seq, code of the outcome, and with KEYS[8] the outcome as JSON, sent if the entry ends now, or ''
-- returns {{code of the outcome of each entry, '0' if it is in flight}, claim's reply…}
-- An unknown entry ends too, so that it cannot come back. A repeated call returns the same, so a caller that crashed before it
-- recorded an outcome can call again.
local held_seq = redis.call('HGET', INFLIGHT, 'seq')
local sent_seq = sent_lately(redis.call('HGET', PRESENCE, SENT))
if sent_seq and not redis.call('ZSCORE', PENDING, sent_seq) then sent_seq = nil end -- it has ended since
local outcomes, has_compaction = {}, redis.call('EXISTS', COMPACTION) == 1

for i = 7, #ARGV, 3 do
  local seq, outcome, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if seq == held_seq or seq == sent_seq then
    redis.call('HSET', ATTEMPTS, outcome_field(seq), outcome)
    outcomes[#outcomes + 1] = '0'
  else
    local ends_now = redis.call('ZADD', DONE, 'NX', outcome, seq) == 1
    if ends_now and record ~= '' then
      local added = redis.pcall('XADD', KEYS[8], '*', 'o', record)
      if type(added) == 'table' then -- an error in a script does not roll back earlier writes
        redis.call('ZREM', DONE, seq)
        return redis.error_reply('OUTCOMES cannot be recorded: ' .. added.err)
      end
    end
    remove_ended(seq)
    outcomes[#outcomes + 1] = redis.call('ZSCORE', DONE, seq)
  end
end

if has_compaction then
  local keys_and_seqs = redis.call('HGETALL', COMPACTION)
  for i = 1, #keys_and_seqs, 2 do
    local has_ended = redis.call('ZSCORE', DONE, keys_and_seqs[i + 1])
    if has_ended then redis.call('HDEL', COMPACTION, keys_and_seqs[i]) end
  end
end

local next_claim = {'none'}
if ARGV[6] == '1' then next_claim = claim() end
return {outcomes, unpack(next_claim)}
