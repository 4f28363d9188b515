cwlVersion: v1.2
class: CommandLineTool
baseCommand: [awk, "{ sum += $1 } END { print sum, ENVIRON[\"ROTA_JOB\"], FNR == NR }"]
inputs:
  counts: {type: "File[]", inputBinding: {position: 1}}
stdout: total.txt
outputs:
  total: {type: stdout}
