#!/bin/bash
#SBATCH --job-name=evener
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --distribution=block
#SBATCH --gpus-per-node=2
#SBATCH --signal=TERM@120
#SBATCH --requeue
# The job writes a checkpoint two minutes before its time is over, and goes on when it is queued again.
export EVENER_JOB_SECRET="$(openssl rand -hex 32)"
srun evener launch train.py /shared/run
if [ $? -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
