"""Commands against the rules `ls *`, `echo *`, `cat *`, `grep *` and `true`: escapes and harmless ones."""

from __future__ import annotations

# Each makes P in an unconfined bash (the test runs it), and each must be denied.
ESCAPES = r"""
ls && touch P
ls ; touch P
ls;touch P
ls | touch P
ls nope || touch P
ls & touch P
ls |& touch P
ls&touch P
ls|touch P
ls nope||touch P
ls&&touch P
(ls; touch P)
{ ls; touch P; }
if ls; then touch P; fi
if true; then touch P; else ls; fi
while touch P; do break; done
until touch P; do break; done
for i in P; do touch $i; done
for ((i=0; i<1; i++)); do touch P; done
case x in x) touch P;; esac
select i in P; do touch $i; break; done <<< 1
ls; touch P #
ls # comment<NL>touch P
ls #'<NL>touch P #'
ls #"<NL>touch P #"
echo a#b; touch P
ls<NL>touch P
<NL><NL>ls<NL><NL>touch P
ls \<NL>; touch P
ls \<NL>&& touch P
ls $(touch P)
ls `touch P`
ls "$(touch P)"
ls "`touch P`"
ls a$(touch P)b
ls "a${x:-$(touch P)}"
ls ${x:-`touch P`}
ls ${x:=$(touch P)}
x=a; ls ${x/a/$(touch P)}
ls $((a[$(touch P)]))
echo $((a[$(touch P)]))
echo $[a[$(touch P)]]
echo "${x:-$(touch P)}"
echo "$(echo "$(touch P)")"
ls <(touch P)
cat <(touch P)
echo x > >(touch P)
ls > P
ls >> P
ls >P
ls >| P
ls &> P
ls &>P
ls &>> P
ls 2> P
ls nope 2>P
ls >&P
ls >& P
ls 1>P
ls 5> P
> P ls
>P
: > P
ls <> P
ls nope 2>> P
ls 2>&1 >P
echo x | tee P
cat f > P
cat < f > P
echo x >./P
echo x >"P"
echo x >'P'
echo x >P\<NL>
exec > P; ls
{ ls; } > P
(ls) > P
ls {fd}>P
nohup touch P
timeout 3 touch P
timeout -k 1 3 touch P
timeout --signal=KILL 3 touch P
nice touch P
nice -n 5 touch P
nice -5 touch P
setsid touch P
setsid -w touch P
stdbuf -oL touch P
ionice -c 3 touch P
xargs touch <<< P
echo P | xargs touch
echo P | xargs -n 1 touch
echo P | xargs -I{} touch {}
env touch P
env -i /usr/bin/touch P
env A=1 touch P
env -u A touch P
env -S 'touch P'
time touch P
time -p touch P
time A=1 touch P
command touch P
command -p touch P
exec touch P
exec -a ls touch P
exec touch P; ls
builtin eval 'touch P'
eval touch P
eval 'touch P'
eval "ls; touch P"
sh -c 'touch P'
bash -c 'touch P'
bash -lc 'touch P'
echo 'touch P' | sh
echo 'touch P' | bash
bash <<< 'touch P'
sh script
bash script
. ./script
source ./script
source /dev/stdin <<< 'touch P'
timeout 3 sh -c 'touch P'
timeout 3 env nice touch P
env timeout 3 nohup touch P
FOO=1 touch P
A=1 B='x y' touch P
FOO= touch P
PATH=$PWD/evil ls
PATH=evil:$PATH ls
PATH=evil:$PATH; ls
export PATH=evil:$PATH; ls
declare -x PATH=evil:$PATH; ls
PATH=evil:/usr/bin:/bin cat f
PATH+=; PATH=evil; ls
env PATH=$PWD/evil ls
A=$(touch P) ls
A=$(touch P)
A=`touch P` ls
A=<(touch P) ls
a[$(touch P)]=1
BASH_ENV=script bash -c true
./evil/ls
evil/ls
$PWD/evil/ls
cd evil && PATH=.:$PATH && ls; cd ..; evil/ls
$(echo touch) P
`echo touch` P
x=touch; $x P
x='touch P'; $x
"touch" P
'touch' P
$'touch' P
$'\x74ouch' P
$'\164ouch' P
to""uch P
t\ouch P
\touch P
to\<NL>uch P
{touch,P}
/usr/bin/touch P
/usr/bin/tou?h P
/usr/bin/touc[h] P
/usr/bin/t*ouch P
f() { touch P; }; f
function f { touch P; }; f
ls() { touch P; }; ls
function ls { touch P; }; ls
shopt -s expand_aliases; alias ls='touch P'<NL>ls
trap 'touch P' EXIT
trap 'touch P' EXIT; ls
coproc touch P; wait
coproc { touch P; }; wait
! touch P
! ls || touch P
ls && ! touch P
[ -e f ] && touch P
[[ -e f ]] && touch P
[[ $(touch P) ]]
[[ a[$(touch P)] -eq 0 ]]
test -n "$(touch P)"
((a[$(touch P)]))
let 'a[$(touch P)]'
((1)) && touch P
printf -v 'a[$(touch P)]' x
read 'a[$(touch P)]' <<< x
x='$(touch P)'; echo ${x@P}
x='a[$(touch P)]'; echo $((x))
y=abc; x='a[$(touch P)]'; echo ${y:x}
x='a[$(touch P)]'; [[ $x -eq 1 ]]
mapfile -C 'touch P #' -c 1 < f
cat <<EOF<NL>$(touch P)<NL>EOF
cat <<EOF<NL>a<NL>EOF<NL>touch P
cat <<'EOF'<NL>a<NL>EOF<NL>touch P
cat <<'EOF' && touch P<NL>a<NL>EOF
cat <<EOF | touch P<NL>a<NL>EOF
cat <<-EOF<NL>	a<NL>	EOF<NL>touch P
cat <<A <<B<NL>a<NL>A<NL>b<NL>B<NL>touch P
cat <<"E F"<NL>a<NL>E F<NL>touch P
cat <<\EOF<NL>a<NL>EOF<NL>touch P
cat <<< "$(touch P)"
cat > P <<EOF<NL>x<NL>EOF
ls 'a' 'b'; touch P
ls 'a;b'; touch P
ls "a\"b"; touch P
ls 'a\'; touch P #'
ls "a\\"; touch P #"
ls \'; touch P #'
ls \"; touch P #"
ls \\; touch P
ls a\ b; touch P
ls $'a\''; touch P #'
ls $"a"; touch P
ls $; touch P
echo ${#}; touch P
echo $#; touch P
echo {a,b}; touch P
echo "é"; touch P
awk 'BEGIN{system("touch P")}'
find . -maxdepth 0 -exec touch P \;
sed '1e touch P' f
python3 -c 'open("P","w")'
perl -e 'open(F,">P")'
tee P < f
cp f P
mv f P
ln -s f P
dd if=f of=P
"""

HARMLESS = r"""
ls
ls -la
ls -la | cat
ls; ls
ls && ls -l || echo no
ls &
ls<NL>echo done
echo 'a && b; c | d'
echo "a && b; c | d"
grep -E 'x|y' f
grep '$(x)' f
grep "a\|b" f
echo "run git commit first"
cat f | grep a
cat f |& grep a
echo a\;b
echo a # ; touch P
echo 'it'"'"'s'
echo "say \"hi\""
echo "cost: \$5"
ls *.py
ls [a-z]*
ls 2>&1
ls 2>/dev/null
ls >/dev/null 2>&1
ls &>/dev/null
ls 2>&-
cat < f
cat <<< 'x; y'
cat <<< "$HOME"
echo $HOME "$PWD" ${USER} $? $$
X=1 ls
LANG=C ls
x=1; echo $x
file=f; cat "$file"
! grep -q zz f
time ls
timeout 5 ls -l
timeout -k 1 5 cat f
nice -n 5 ls
nohup ls
env X=1 ls
command ls
echo f | xargs cat
echo $'a\tb'
echo é ü 日本
echo HEAD@{1}
ls \<NL>  -l
ls -l |<NL> cat
ls;
echo {}
echo a=b --x=y
echo !
"ls" -l
true
"""


def commands(table: str) -> list[str]:
    """Read a table: one command a line, <NL> for a newline."""
    return [line.replace("<NL>", "\n") for line in table.split("\n") if line]


def blocks(table: str, *, size: int = 25) -> list[list[str]]:
    """Cut a table into blocks, each of which is one test."""
    read = commands(table)
    return [read[at : at + size] for at in range(0, len(read), size)]
