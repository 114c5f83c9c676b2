#!/usr/bin/env bash
# Train one arm with one seed into RUNS/ARM-sSEED. Run: DATA=folder-with-cifar-100-python bash run.sh ARM SEED RUNS
set -euo pipefail
arm=$1 seed=$2 runs=$3
case "$arm" in
  plain) options=(--relation.name none --relation.at= --relation.no-share) ;;
  all) options=() ;;
  last) options=(--relation.at last --relation.no-share) ;;
  paper) options=(--relation.variant paper) ;;
  *) echo "unknown arm '$arm': plain, all, last or paper" >&2 && exit 2 ;;
esac
relatum train cifar100-vit-nano --data.root "$DATA" --model.name vit-pico-p8 --train.lr 2e-3 --data.augment weak \
  --data.mixup 0 --data.cutmix 0 --train.epochs 20 --train.warmup-epochs 2 --train.precision float32 --train.threads 1 \
  --train.eval-every 0 --train.seed "$seed" --out "$runs/$arm-s$seed" "${options[@]}" "${@:4}"
