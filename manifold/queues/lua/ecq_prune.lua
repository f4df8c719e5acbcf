-- ecq_prune.lua: remove acknowledged messages that were written before a given time.
-- ARGV[6] the given time, Unix ms   returns the number of removed messages
local total = 0
repeat
  local removed = prune(tonumber(ARGV[6]))
  total = total + removed
until removed == 0
return total
