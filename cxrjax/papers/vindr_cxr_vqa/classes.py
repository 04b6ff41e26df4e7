"""The classes of VinDr-CXR-VQA, as the public box table (Kaggle, VinBigData) numbers them."""

NO_FINDING = "No finding"
NO_FINDING_ID = 14

# Kaggle ids 0 to 13, in order. The paper selects "14 clinically relevant" classes without naming
# them; these are the ones its data card names.
CLASSES = (
    "Aortic enlargement",
    "Atelectasis",
    "Calcification",
    "Cardiomegaly",
    "Consolidation",
    "ILD",
    "Infiltration",
    "Lung Opacity",
    "Nodule/Mass",
    "Other lesion",
    "Pleural effusion",
    "Pleural thickening",
    "Pneumothorax",
    "Pulmonary fibrosis",
)
CLASS_IDS = {name: number for number, name in enumerate(CLASSES)} | {NO_FINDING: NO_FINDING_ID}

# The other local labels of the full VinDr-CXR release (PhysioNet): known, and not among the 14.
OTHER_LOCAL_CLASSES = (
    "Clavicle fracture",
    "Edema",
    "Emphysema",
    "Enlarged PA",
    "Lung cavity",
    "Lung cyst",
    "Mediastinal shift",
    "Rib fracture",
)
