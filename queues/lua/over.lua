-- over.lua: the pending and parked entries, oldest first, that must not be sent any more. Changes nothing.
-- ARGV[1] now_ms   ARGV[2] presence_ms   ARGV[3] its terms   returns {'over', seq, how, attempts, …}
local now, retention_ms = tonumber(ARGV[1]), terms_of(ARGV[3]).retention_ms
local found = over(PENDING, now, retention_ms)
for place, part in ipairs(over(PARKED, now, retention_ms)) do
  if place > 1 then found[#found + 1] = part end
end
return found
