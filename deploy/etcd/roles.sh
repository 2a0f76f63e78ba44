#!/bin/sh
# Users and roles of least privilege in etcd, and authentication on. May be run again, such as to add a model.
#
#   PASSWORDS=/etc/loadline/etcd ETCDCTL_ENDPOINTS=https://etcd:2379 ./roles.sh NAMESPACE MODEL...
#
# PASSWORDS is a folder of root's, mode 0700, with a file of one line for each user: root, loadline-agent,
# loadline-reader and loadline-worker-MODEL for each model. Passwords go in by stdin, so that no process list shows them.
# Once authentication is on, a further run needs ETCDCTL_USER=root and ETCDCTL_PASSWORD in the environment.
# MODEL is written as in a key: characters outside A-Z a-z 0-9 _ - percent-encoded, so meta/llama is meta%2Fllama.
#
# Scalers and frontends need nothing in etcd. loadline-reader is for routers and for people who look.
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

# Everything of the namespace: it leads, commits decisions, keeps what it learned, pauses, and revokes the lease of a
# worker that does not answer.
role loadline-agent readwrite "$prefix"
user loadline-agent loadline-agent

role loadline-reader read "$prefix"
user loadline-reader loadline-reader

# A worker writes its own record; it reads it first, for it may be another's by now.
for model in "$@"; do
  role "loadline-worker-$model" readwrite "${prefix}workers/$model/"
  user "loadline-worker-$model" "loadline-worker-$model"
done

etcdctl user get root >/dev/null 2>&1 || etcdctl user add root --interactive=false <"$PASSWORDS/root"
etcdctl user grant-role root root
etcdctl auth enable
