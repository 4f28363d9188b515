-- Version 5: attempts shows the millicores of an attempt on each of its hosts too (a JSON list).
-- Older bodies are a field shorter: for them it is NULL.

DROP VIEW attempts;
CREATE VIEW attempts AS SELECT
    batch, pos, attempt, state,
    json_extract(CAST(body AS TEXT), '$[4]') AS exit_code,
    json_extract(CAST(body AS TEXT), '$[5]') AS signal,
    json_extract(CAST(body AS TEXT), '$[6]') AS reason,
    json_extract(CAST(body AS TEXT), '$[7]') AS runner,
    json_extract(CAST(body AS TEXT), '$[8]') AS host,
    started, ended,
    json_extract(CAST(body AS TEXT), '$[11]') AS cpu_s,
    json_extract(CAST(body AS TEXT), '$[12]') AS peak_memory,
    json_extract(CAST(body AS TEXT), '$[13]') AS output,
    json_extract(CAST(body AS TEXT), '$[14]') AS note,
    json_extract(CAST(body AS TEXT), '$[15]') AS peak_disk,
    json_extract(CAST(body AS TEXT), '$[16]') AS cores
FROM results;
