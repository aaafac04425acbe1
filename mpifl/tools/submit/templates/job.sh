
${seeds}command=(${run})
# When this run was started before, it continues from its checkpoint, or begins anew where it has none.
if ${again}; then
    if ls ${checkpoints}/*.json > /dev/null 2>&1; then
        command=(${resume})
    fi
fi
