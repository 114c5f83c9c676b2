#!/usr/bin/env bash
# All runs of this claim into one sweep directory. Run: DATA=folder-with-cifar-100-python bash run.sh OUT
# Rerunning continues; the encoders of the first stage are shared by the runs of a seed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sweep=(relatum sweep "$here/recipe.toml" --data.root "$DATA" --out "$1" --jobs 2 --seeds 0-1)
"${sweep[@]}" --over objective.name=cross-entropy,balanced-softmax,balanced-bce --over pretrain.method=none,mae
# Plain BCE starts at 1/C for every class, as the others do; with a bias of 0 it spends its first epochs getting there.
"${sweep[@]}" --over objective.name=bce --over pretrain.method=none,mae --over "model.head_bias=log(C-1)"
"${sweep[@]}" --over objective.tau=0.5,1.5,2
