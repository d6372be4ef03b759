"""What scripts/roofline and scripts/gpu_check are made of: cards, models, work on paper, and the steps on a card."""
