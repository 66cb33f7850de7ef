#!/bin/sh
# Starts the chart's own Redis with the rights that the service needs and no more. Of the password, which comes as a
# file, only a hash is written down. Probes have a user of their own that can do nothing but PING, so that no command
# line and no variable holds the password.
set -eu
umask 077

password=$(cat "$PASSWORD_PATH")
[ -n "$password" ] || { echo "the password of Redis is empty: $PASSWORD_PATH" >&2; exit 1; }
hash=$(printf %s "$password" | sha256sum)

printf '%s\n' \
  "user default off" \
  "user discovery on #${hash%% *} ~{$PREFIX}:* &{$PREFIX}:* -@all $RIGHTS" \
  "user probe on nopass -@all +ping" >"$RUN_PATH/users.acl"

exec redis-server "$CONFIG_PATH" --aclfile "$RUN_PATH/users.acl"
