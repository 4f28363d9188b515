cwlVersion: v1.2
class: Workflow
inputs:
  command: string
outputs: {}
steps:
  run:
    in: {command: command}
    out: []
    run:
      class: CommandLineTool
      baseCommand: [sh, -c]
      inputs:
        command: {type: string, inputBinding: {position: 1}}
      outputs: {}
