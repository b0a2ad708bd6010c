#!/bin/bash
# Runs the model: check.sh [quick|full] [NAME...] (only these lines of the table). Each line says what must come out; any
# other result is a failure. A violation that must be found is named by the text of its assertion, so that another one
# does not count. Needs spin and gcc, installs nothing, one core; exit codes: 0 all as stated, 1 not, 2 cannot run.
set -u
here=$(cd "$(dirname "$0")" && pwd); mode=${1:-quick}; bad=0; ran=0; [ $# = 0 ] || shift
case "$mode" in quick|full) ;; *) echo "usage: check.sh [quick|full] [NAME...]" >&2; exit 2;; esac
for program in spin gcc; do
  command -v $program >/dev/null || { echo "check.sh: $program is missing (Debian: apt-get install $program); nothing was checked" >&2; exit 2; }
done
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
one() {   # name  expected ("ok" or a piece of the assertion)  flags  how to compile: small runs take longer to compile than to run
  mkdir -p "$work/$1" && cd "$work/$1" && cp "$here/step.pml" . || exit 1
  spin $3 -a step.pml >spin.log 2>&1 && gcc $4 -w -DSAFETY -DNOREDUCE -DCOLLAPSE -DMEMLIM=12000 -DVECTORSZ=4096 -o pan pan.c ||
    { echo "FAIL $1: does not build"; bad=1; return; }
  (ulimit -t 1200; exec timeout 7200 ./pan -m200000) >out.log 2>err.log   # by CPU time: a busy machine is no failure
  n=$(awk '/states, stored/ {print $1}' out.log); v=$(grep -h '^pan:1:' out.log err.log | head -1)
  if [ "$2" = ok ]; then grep -q 'errors: 0' out.log && ! grep -qE 'Search not completed|too small' out.log err.log; else case "$v" in *"$2"*) true;; *) false;; esac; fi
  if [ $? = 0 ]; then printf 'ok   %-28s %10s states  %s\n' "$1" "$n" "${v#pan:1: }" | cut -c1-140; else echo "FAIL $1: expected '$2', got '${v:-no violation, or not completed}'"; bad=1; fi
  rm -rf "$work/$1"
}
while IFS='|' read -r kind name want flags; do
  case "$kind" in ''|'#'*) continue;; quick) compile=-O1;; full) compile=-O2; [ "$mode" = full ] || [ $# -gt 0 ] || continue;; esac
  [ $# = 0 ] || case " $* " in *" $name "*) ;; *) continue;; esac
  ran=$((ran + 1))
  one "$name" "$want" "$flags" $compile
done <<'TABLE'
# the protocol itself
quick|crash+zombie|ok|-DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|crash+zombie+steal|ok|-DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=1 -DVMAX=3
full|all-faults|ok|-DC2 -DCRASH=2 -DZOMBIE=1 -DSTEAL=1 -DMCRASH=1 -DVMAX=4
full|all-faults-no-C2|ok|-DCRASH=2 -DZOMBIE=1 -DSTEAL=1 -DMCRASH=1 -DVMAX=4
quick|newcomer-crash|ok|-DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
quick|newcomer-2-crashes|ok|-DC2 -DN0=2 -DJ=1 -DCRASH=2 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=12
full|newcomer-chunk-a-step|ok|-DONECHUNK -DC2 -DN0=2 -DJ=1 -DCRASH=2 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=12
full|newcomer-crash+zombie|ok|-DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=12
full|newcomer-no-C2|ok|-DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=12
full|newcomer-selffull-C2|ok|-DSELFFULL -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=12
full|3+newcomer|ok|-DC2 -DN0=3 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=3 -DQ=12
full|3+newcomer-zombie-1-bucket|ok|-DC2 -DN0=3 -DJ=1 -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=4 -DQ=12
quick|checkpoint|ok|-DPUB -DC2 -DNB=1 -DCRASH=2 -DZOMBIE=1 -DMCRASH=1 -DSTEAL=0 -DVMAX=4
full|checkpoint-newcomer|ok|-DPUB -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DNL=2 -DVMAX=4 -DQ=12 -DNB=1
# the implementation's reading (README): default table granted by COMMIT and DECIDE, all-reduces of the whole view
quick|as-built|ok|-DRIDE -DLUMP -DALLRED -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|as-built-newcomer|ok|-DRIDE -DLUMP -DALLRED -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
# the table rides and reserves; claims are answered from the reserves, also from another's
quick|claims-ahead|ok|-DAHEAD -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|claims-2-buckets|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|claims-zombie|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=0 -DZOMBIE=1 -DSTEAL=1 -DVMAX=3
quick|claims-2-steals|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DN0=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=2 -DVMAX=3
quick|claims-newcomer|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DN0=2 -DJ=1 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DS=3 -DVMAX=3 -DQ=12
quick|claims+drop|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DDROP -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3 -DQ=12
quick|claims+leave|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3 -DQ=12
full|claims-crash+zombie|ok|-DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=1 -DVMAX=3
# two shards a bucket, with different owners
quick|shards|ok|-DSH=2 -DNB=1 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|shards-as-built|ok|-DSH=2 -DNB=2 -DRIDE -DLUMP -DALLRED -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3 -DQ=12
full|shards-2-buckets|ok|-DSH=2 -DNB=2 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3 -DQ=14
# two newcomers
quick|newcomers|ok|-DC2 -DNB=1 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=14
full|newcomers-as-built|ok|-DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DN0=2 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=14
full|newcomers-2-chunks|ok|-DRIDE -DLUMP -DALLRED -DC2 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=14
quick|newcomer-bound|ok|-DBOUND -DONECHUNK -DRIDE -DLUMP -DALLRED -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
quick|newcomers-bound|ok|-DBOUND -DONECHUNK -DRIDE -DLUMP -DALLRED -DC2 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
# the layout changes between steps
quick|layout|ok|-DLAY=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|layout-free-C2|ok|-DLAYFREE -DC2 -DLAY=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|layout-newcomer|ok|-DRIDE -DLUMP -DALLRED -DLAY=1 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
full|layout-2-changes|ok|-DRIDE -DLUMP -DALLRED -DLAYFREE -DC2 -DLAY=2 -DCRASH=2 -DZOMBIE=1 -DSTEAL=0 -DS=3 -DVMAX=4
# graceful leave
quick|leave|ok|-DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DS=3 -DVMAX=4
quick|leave-no-C2|ok|-DRIDE -DLUMP -DALLRED -DLEAVE=1 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|leave-all-2|ok|-DRIDE -DLUMP -DALLRED -DLEAVE=2 -DC2 -DN0=2 -DNL=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|leave-and-join|ok|-DRIDE -DLUMP -DALLRED -DLEAVE=2 -DC2 -DN0=1 -DJ=1 -DNL=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4 -DQ=12
full|leave-and-join-2|ok|-DRIDE -DLUMP -DALLRED -DLEAVE=2 -DC2 -DN0=2 -DJ=1 -DNL=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4 -DQ=12
full|leave-steal|ok|-DLEAVE=2 -DC2 -DCRASH=2 -DZOMBIE=0 -DSTEAL=1 -DVMAX=4
full|leave-manager-crash|ok|-DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DCRASH=1 -DZOMBIE=1 -DMCRASH=1 -DSTEAL=0 -DS=3 -DVMAX=4
# policy drop
quick|drop|ok|-DRIDE -DLUMP -DALLRED -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|drop-no-C2|ok|-DRIDE -DLUMP -DALLRED -DDROP -DCRASH=2 -DZOMBIE=1 -DSTEAL=0 -DVMAX=4
quick|drop-newcomer|ok|-DRIDE -DLUMP -DALLRED -DDROP -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DVMAX=4 -DQ=12
quick|drop-anew|ok|-DDROPANEW -DRIDE -DLUMP -DALLRED -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|drop-anew-no-C2|ok|-DDROPANEW -DRIDE -DLUMP -DALLRED -DDROP -DCRASH=2 -DZOMBIE=1 -DSTEAL=0 -DVMAX=4
quick|drop-anew-newcomer|ok|-DDROPANEW -DDROP -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DVMAX=4 -DQ=12
full|drop-anew-messages|ok|-DDROPANEW -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
full|drop-steal|ok|-DDROP -DCRASH=1 -DZOMBIE=1 -DSTEAL=1 -DVMAX=3
# all of it at once
quick|shards+layout+leave+drop|ok|-DRIDE -DLUMP -DALLRED -DDROP -DLAY=1 -DLEAVE=1 -DSH=2 -DNB=1 -DC2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DVMAX=3 -DQ=12
# the text read otherwise, or planted bugs: each must be found
quick|NOLASTVOTE|rd[|-DNOLASTVOTE -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|NOTALL|rd[|-DNOTALL -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|NOR1|assertion violated 0|-DNOR1 -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|EARLYAPPLY|rd[|-DEARLYAPPLY -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3 -DQ=12
quick|DROPHELD|gb[|-DDROPHELD -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|NOSALV|gb[|-DNOSALV -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|SKIPSALV|&8)==0|-DSKIPSALV -DCRASH=2 -DZOMBIE=0 -DSTEAL=0 -DS=1 -DVMAX=3
quick|STEALBUG|&8)==0|-DSTEALBUG -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|GRANTTWICE|&8)==0|-DGRANTTWICE -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|GRANTLATE|&8)==0|-DGRANTLATE -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|STEALGRANTED|&8)==0|-DSTEALGRANTED -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|NOANSWER|(mup&&|-DNOANSWER -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|LATEDONE|done[|-DLATEDONE -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|MIDBACK|&8)==0|-DMIDBACK -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|OLDMSG|rd[|-DOLDMSG -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|NOEMPTY|(mup&&|-DNOEMPTY -DLUMP -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|ADDUP|(mup&&|-DADDUP -DCRASH=1 -DZOMBIE=1 -DVMAX=3
quick|REUSE|gv[|-DREUSE -DCRASH=2 -DZOMBIE=0 -DSTEAL=0 -DMCRASH=1 -DVMAX=3
quick|SCALARS|gs[|-DSCALARS -DC2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNB=1 -DS=1 -DVMAX=2
quick|BLINDCHUNK|ck[|-DBLINDCHUNK -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
quick|LATECHUNK|ck[|-DLATECHUNK -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
quick|LISTENNOVOTE|rd[|-DLISTENNOVOTE -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DVMAX=3 -DQ=20
quick|SELFFULL-no-C2|gb[|-DSELFFULL -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DNL=2 -DVMAX=4 -DQ=12 -DNB=1
quick|NOFENCE|restarted|-DNOFENCE -DPUB -DC2 -DNB=1 -DCRASH=2 -DZOMBIE=1 -DSTEAL=0 -DVMAX=4
quick|EARLYPUB+NOSALV|pub[|-DEARLYPUB -DNOSALV -DNOI1 -DPUB -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|KEEPPART|gb[|-DKEEPPART -DSH=2 -DNB=1 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|PARTHELD|(mup&&|-DPARTHELD -DSH=2 -DNB=1 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|LEADFULL|(mup&&|-DLEADFULL -DRIDE -DLUMP -DALLRED -DC2 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=14
quick|ONEFORALL|ck[|-DONEFORALL -DRIDE -DLUMP -DALLRED -DC2 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=14
quick|DONORANY|ck[|-DDONORANY -DRIDE -DLUMP -DALLRED -DC2 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=14
quick|NOWITHHOLD|lc[|-DNOWITHHOLD -DBOUND -DONECHUNK -DRIDE -DLUMP -DALLRED -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
quick|LAYFREE-no-C2|gb[|-DLAYFREE -DLAY=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|LAYSALV|>>4)&1)==ly[|-DLAYSALV -DLAYFREE -DC2 -DLAY=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|LAYOWN|&8)==0|-DLAYOWN -DC2 -DLAY=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|LEAVENOW|done[|-DLEAVENOW -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|LEAVENOW-owners|&8)==0|-DLEAVENOW -DNOGRACE -DLEAVE=1 -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DVMAX=3
quick|LEAVEEARLY|done[|-DLEAVEEARLY -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|LEAVEOLD|done[|-DLEAVEOLD -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DN0=2 -DNL=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|NOBACK|&8)==0|-DNOBACK -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DN0=2 -DNL=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|ALLOUT|&8)==0|-DALLOUT -DRIDE -DLUMP -DALLRED -DLEAVE=2 -DC2 -DN0=2 -DNL=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|DROPBLIND|>>5)&7)==pd[|-DDROPBLIND -DRIDE -DLUMP -DALLRED -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|DROPFORGET-no-C2|gb[|-DDROPFORGET -DRIDE -DLUMP -DALLRED -DDROP -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=4
quick|DROPMIX|>>5)&7)==pd[|-DDROPMIX -DDROPANEW -DRIDE -DLUMP -DALLRED -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|DROPGRANT|&8)==0|-DDROPGRANT -DRIDE -DLUMP -DALLRED -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
# R4 alone keeps one lineage of checkpoints even where I1 is broken for the last step; without it nothing breaks as long as the rest holds
quick|R4+NOSALV|ok|-DNOSALV -DNOI1 -DPUB -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|EARLYPUB|ok|-DEARLYPUB -DC2 -DPUB -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
# reachability probes: the assertion is placed where something interesting happens and must be hit
quick|probe-R1|1!=1|-DPROBE=1 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-salvage-and-recompute|2!=2|-DPROBE=2 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-failure-in-reconcile|3!=3|-DPROBE=3 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-view-skipped|4!=4|-DPROBE=4 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-zombie-commits|5!=5|-DPROBE=5 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-commit-of-old-view-bits|6!=6|-DPROBE=6 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-newcomer-computes|7!=7|-DPROBE=7 -DC2 -DN0=2 -DJ=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=3 -DQ=12
quick|probe-buckets-of-two-views|8!=8|-DPROBE=8 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-partial-bucket|9!=9|-DPROBE=9 -DSH=2 -DNB=1 -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-two-newcomers-compute|10!=10|-DPROBE=10 -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=3 -DS=3 -DVMAX=4 -DQ=14
quick|probe-salvage-in-new-layout|11!=11|-DPROBE=11 -DLAY=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-leaver-taken-back|12!=12|-DPROBE=12 -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DN0=2 -DNL=2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DS=3 -DVMAX=4
quick|probe-leaver-gone|13!=13|-DPROBE=13 -DRIDE -DLUMP -DALLRED -DLEAVE=1 -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DS=3 -DVMAX=4
quick|probe-salvage-after-drop|14!=14|-DPROBE=14 -DRIDE -DLUMP -DALLRED -DDROP -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=4
quick|probe-held-bucket-thrown-away|16!=16|-DPROBE=16 -DDROPANEW -DRIDE -DLUMP -DALLRED -DDROP -DC2 -DCRASH=1 -DZOMBIE=1 -DSTEAL=0 -DVMAX=3
quick|probe-stolen-lease|17!=17|-DPROBE=17 -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|probe-last-without-a-lease|18!=18|-DPROBE=18 -DCLAIMS -DRIDE -DLUMP -DALLRED -DC2 -DNB=1 -DCRASH=1 -DZOMBIE=0 -DSTEAL=1 -DVMAX=3
quick|probe-listener-leads|15!=15|-DPROBE=15 -DRIDE -DLUMP -DALLRED -DC2 -DN0=1 -DJ=2 -DCRASH=1 -DZOMBIE=0 -DSTEAL=0 -DNL=2 -DS=3 -DVMAX=4 -DQ=14
TABLE
[ $ran -gt 0 ] || { echo "check.sh: no line of the table is named: $*" >&2; exit 2; }
exit $bad
