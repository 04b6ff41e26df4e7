"""Phantom chest X-ray studies in the native layouts of MIMIC-CXR-JPG, Chest ImaGenome and CXAS.

    python -m cxrjax.build --dataset=phantom_studies --studies=200 --seed=0 --out=DIR

Nothing in it comes from a patient: pictures, anatomy and reports follow from (seed, number). What
lies in DIR, with the names and columns of the published data sets:

    files/p1x/p1xxxxxxx/sxxxxxxxx.txt              the report of a study
    files/p1x/p1xxxxxxx/sxxxxxxxx/<dicom_id>.jpg   its views, 8 bits grey
    mimic-cxr-2.0.0-metadata.csv.gz    dicom_id, subject_id, study_id,
        PerformedProcedureStepDescription, ViewPosition (PA, AP, LATERAL), Rows, Columns, StudyDate
        (YYYYMMDD), StudyTime (HHMMSS.fff), ProcedureCodeSequence_CodeMeaning,
        ViewCodeSequence_CodeMeaning, PatientOrientationCodeSequence_CodeMeaning
    mimic-cxr-2.0.0-split.csv.gz       dicom_id, study_id, subject_id, split (train, validate, test)
    mimic-cxr-2.0.0-chexpert.csv.gz    subject_id, study_id and the 14 classes, as the *report* has
        them: 1.0 there, 0.0 denied, -1.0 uncertain, blank not mentioned
    cxr-record-list.csv.gz             subject_id, study_id, dicom_id, path (files/....dcm)
    cxr-study-list.csv.gz              subject_id, study_id, path (files/....txt)
    chest_imagenome/silver_dataset/scene_graph/<dicom_id>_SceneGraph.json   each frontal view
    chest_imagenome/silver_dataset/splits/{train,valid,test}.csv   (no name), subject_id, study_id,
        dicom_id, path, ViewPosition
    cxas/<dicom_id>.json               each frontal view: masks as COCO run lengths
    truth/studies.jsonl                what is really there, and what each sentence means
    manifest.json, statistics.json, quality.json

A synthetic dicom_id begins with `00000000-`; no real one does.

**Report.** Sections as lines `NAME:` in capitals, indented by one space as MIMIC-CXR has them:
EXAMINATION, INDICATION, TECHNIQUE, COMPARISON, FINDINGS, IMPRESSION. Some reports have an empty
section, some less than two sentences, some compare with the study before.

**Scene graph** keys: image_id, viewpoint, patient_id, study_id (integers), gender, age_decile,
reason_for_exam, StudyOrder (1 is a patient's first), StudyDateTime, objects, attributes,
relationships.

- objects: object_id (`<dicom_id>_<bbox_name>`), bbox_name (one of the 29), name, synsets, x1, y1,
  x2, y2, width, height, original_x1, ..., original_height; integers. `original_*` are pixels of
  the JPEG. `x1` ... are on Chest ImaGenome's 224 frame: the picture is scaled so that its long
  side has 224 pixels and centred on black, aspect kept (a letterbox, *not* a plain resize). A
  region that lies outside the picture has no object.
- attributes, one entry per region with at least one sentence: bbox_name, name, object_id, synsets
  and lists of equal length, one item per sentence: attributes (lists of `category|yes/no|finding`),
  attributes_ids, phrases, phrase_IDs (`<study_id>|<n>`), sections (`finalreport`), comparison_cues,
  temporal_cues, severity_cues, texture_cues (lists of `category|yes|value`).
- relationships with the view of the study before: relationship_id, predicate, synsets,
  relationship_names (`comparison|yes|no change`, `improved`, `worsened`), relationship_contexts,
  phrase, attributes, bbox_name, subject_id, object_id.

**Masks**: COCO JSON as CXAS exports it: info, licenses, images [{id, file_name, height, width}],
categories [{id, name, supercategory}], annotations [{id, image_id, category_id, segmentation
{size [h, w], counts}, area, bbox [x, y, w, h], iscrowd}]. Read them by name: the ids are ours. The
names are CXAS's ("right lung", "right upper zone lung", "heart", "clavicle left",
"posterior 3rd rib right", ...); only structures that the renderer draws are there.

**Truth**, one JSON line per study: subject_id, study_id, split, study_order, kind (`full`,
`impression_only`, `empty_findings`, `short`), images and sentences.

- images: dicom_id, view, height, width, lesions [{lesion (a number that is the same in all views of
  the study), finding (VinDr-CXR's class), kind, box [x0, y0, x1, y1] pixels, regions}]; a lateral
  view has none.
- sentences: sentence_id (`S01`; also the n of phrase_IDs), section (`findings`, `impression`),
  text, longitudinal (compares with another study), facts [{finding, polarity (`positive`,
  `negative`, `uncertain`, `normal`), regions (of the 29 names), severity, change (`new`,
  `no change`, `improved`, `worsened` or null), lesions (numbers)}]. `normal` says that the regions
  are; its finding is null.
"""
