
${seeds}command=(${run})
# When the batch system starts this job again, the run continues from its checkpoint, or begins anew where it has none.
if [ "$$restarts" != 0 ]; then
    if ls ${checkpoints}/*.json > /dev/null 2>&1; then command=(${resume}); else command+=(overwrite=true); fi
fi
