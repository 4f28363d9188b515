# How often each file has the word, and what it was run by.
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sh, -c]
requirements:
  ResourceRequirement: {coresMin: 1, ramMin: 300}
  EnvVarRequirement:
    envDef: {GREETING: "it's $HOME `x` \"{}\""}
arguments:
  - 'test "$GREETING" = "$0" && grep -c word "$1" | sed "s/$/ $ROTA_JOB/" && test "{$2}" = "{1}"'
  - "it's $HOME `x` \"{}\""
inputs:
  text: {type: File, inputBinding: {position: 1}}
  least: {type: int, inputBinding: {position: 2}}
stdout: counted.txt
outputs:
  counted: {type: stdout}
