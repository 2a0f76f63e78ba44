#!/bin/sh
# Create users and roles of least privilege in etcd and enable authentication. Run it again to add a model.
#
#   PASSWORDS=/etc/loadline/etcd ETCDCTL_ENDPOINTS=https://etcd:2379 ./roles.sh NAMESPACE MODEL...
#
# PASSWORDS is a folder owned by root, mode 0700, with a one-line file per user: root, loadline-agent, loadline-reader
# and loadline-worker-MODEL for each model. Passwords are passed by stdin, so that no process list shows them.
# After authentication is enabled, a run needs ETCDCTL_USER=root and ETCDCTL_PASSWORD in the environment.
# MODEL is percent-encoded as in keys, except for A-Z a-z 0-9 _ -: meta/llama is meta%2Fllama.
#
# Scalers and frontends need no access to etcd. loadline-reader is for routers and operators.
set -eu

namespace=$1
shift
prefix="/loadline/$namespace/"

role() { # name, read|write|readwrite, prefix
  etcdctl role get "$1" >/dev/null 2>&1 || etcdctl role add "$1"
  etcdctl role grant-permission "$1" "$2" --prefix=true "$3"
}

user() { # name, role
  etcdctl user get "$1" >/dev/null 2>&1 || etcdctl user add "$1" --interactive=false <"$PASSWORDS/$1"
  etcdctl user grant-role "$1" "$2"
}

# The agent needs the whole namespace: leader key, decisions, learned state, pauses, and the keys of workers that do not
# leave, which it removes.
role loadline-agent readwrite "$prefix"
user loadline-agent loadline-agent

role loadline-reader read "$prefix"
user loadline-reader loadline-reader

# A worker writes its own record, and first reads it, since a later worker of its name may have replaced it. It reads the
# leaders and their epochs when it has refused a command as one of a former leader.
for model in "$@"; do
  role "loadline-worker-$model" readwrite "${prefix}workers/$model/"
  role "loadline-worker-$model" read "${prefix}leader/"
  user "loadline-worker-$model" "loadline-worker-$model"
done

etcdctl user get root >/dev/null 2>&1 || etcdctl user add root --interactive=false <"$PASSWORDS/root"
etcdctl user grant-role root root
etcdctl auth enable
