cwlVersion: v1.2
class: Workflow
requirements:
  ScatterFeatureRequirement: {}
inputs:
  texts: File[]
  least: int
outputs:
  total:
    type: File
    outputSource: sum/total
steps:
  count:
    run: count.cwl
    scatter: text
    in:
      text: texts
      least: least
    out: [counted]
  sum:
    run: sum.cwl
    in:
      counts: count/counted
    out: [total]
