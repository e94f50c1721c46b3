"""The sandbox alone: `python -m forkrun_sandbox [OPTIONS] -- COMMAND`."""
import sys,os
from forkrun_sandbox.enter import enter
from forkrun_sandbox.spec import Spec,Limits
ws=os.path.realpath(os.environ.get('WS','.'))
try:
    r=enter(Spec(tier=os.environ.get('TIER','full'),workspace=ws,workspace_mode=os.environ.get('MODE','write'),network=os.environ.get('NET','loopback'),limits=Limits(processes=512,open_files=1024,tmp_bytes=64<<20)))
    if os.environ.get('SHOW'): print(r)
    os.environ['HOME']='/home/agent'
    os.environ['TMPDIR']='/tmp'
    sys.stdout.flush()
    if sys.argv[1:]: os.execvp(sys.argv[1],sys.argv[1:])
except BaseException as e:
    import traceback; traceback.print_exc()
    sys.stderr.flush()
    os._exit(125)
