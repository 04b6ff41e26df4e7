"""Radiographs with lung masks: Kermany's chest X-rays with V7's masks, or any folder of such."""
