-- ecq_prune.lua: remove acknowledged messages that were written before a given time.
-- ARGV[6] the given time, Unix ms   returns the number of removed messages
local gone = 0
repeat
  local some = prune(tonumber(ARGV[6]))
  gone = gone + some
until some == 0
return gone
