-- Days with pages of several hours (`day.rs`, version 2), and summaries whose columns begin with their lengths (`rollup_blob.rs`, kind 1002).
-- No table changes. A program of before would take such blobs for damaged ones, and set them aside; because of this version
-- it does not open the file.
SELECT 1;
