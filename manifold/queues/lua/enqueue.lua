-- enqueue.lua: queue entries of one owner. Idempotent; an entry that has ended never comes back.
-- ARGV[6] '1' with compaction   then, for each entry: seq, and with compaction its compaction key
-- returns {word, number of new entries, {superseded seq, …}}, where word is 'ready' (the vehicle is present and subscribed,
-- something is pending and nothing is in flight: wake a dispatcher), 'queued', or 'known' (no entry is new)
-- If an entry is offered again, an earlier caller may have crashed before it recorded the outcomes of superseded entries. So all
-- seqs that are remembered as superseded are returned then.
local ENTRIES_PER_COMMAND = 2000 -- Lua's stack holds some 8,000 arguments
local now, presence_ms, has_compaction = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[6] == '1'
-- No entry has ended or is parked, so each is either pending already or new.
local is_simple = not has_compaction and redis.call('EXISTS', DONE, PARKED) == 0
local queued, was_offered_before, superseded = 0, false, {}

local function supersede(seq)
  redis.call('ZADD', DONE, 'NX', SUPERSEDED, seq)
  remove_ended(seq)
  superseded[#superseded + 1] = seq
end

-- If another entry with the same compaction key waits, replace the older one of the two, unless the other one may be on its way
-- to the vehicle already. Returns whether `seq` is still to be queued.
local function compact(seq, key)
  local other = redis.call('HGET', COMPACTION, key)
  local waits = other and (redis.call('ZSCORE', PENDING, other) or redis.call('ZSCORE', PARKED, other))
  local is_sent = other == redis.call('HGET', INFLIGHT, 'seq') or other == sent_lately(redis.call('HGET', PRESENCE, SENT))
  if waits and not is_sent then
    if older(seq, other) then
      supersede(seq)
      return false
    end
    supersede(other)
  end
  redis.call('HSET', COMPACTION, key, seq)
  return true
end

if is_simple then
  for first = 7, #ARGV, ENTRIES_PER_COMMAND do
    local scores_and_members, n = {}, 0
    for i = first, math.min(first + ENTRIES_PER_COMMAND - 1, #ARGV) do
      local seq = ARGV[i]
      scores_and_members[n + 1], scores_and_members[n + 2] = seq, seq
      n = n + 2
    end
    queued = queued + redis.call('ZADD', PENDING, 'NX', unpack(scores_and_members))
  end
else
  for i = 7, #ARGV, has_compaction and 2 or 1 do
    local seq = ARGV[i]
    local is_known = redis.call('ZSCORE', PENDING, seq) or redis.call('ZSCORE', DONE, seq) or redis.call('ZSCORE', PARKED, seq)
    if is_known then
      was_offered_before = true
    elseif not has_compaction or compact(seq, ARGV[i + 1]) then
      queued = queued + redis.call('ZADD', PENDING, seq, seq)
    end
  end
  if was_offered_before and has_compaction then superseded = redis.call('ZRANGEBYSCORE', DONE, SUPERSEDED, SUPERSEDED) end
end

local can_claim = presence_state(now, presence_ms) == 'here' and redis.call('EXISTS', INFLIGHT) == 0
local word = 'known'
-- Return 'ready' even if nothing is new, because an earlier caller may have crashed before it woke a dispatcher.
if can_claim and (queued > 0 or redis.call('EXISTS', PENDING) == 1) then
  word = 'ready'
elseif queued > 0 then
  word = 'queued'
end
return {word, queued, superseded} -- `superseded` in a list of its own, because it may have more items than Lua's stack
