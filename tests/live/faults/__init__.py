"""Faults under load, and an oracle that says afterwards which promises were kept.

``load`` lets relays, pollers and subscribers live and write everything down; ``faults`` break what they use; ``stage``
brings both together, one fault after the other; ``oracle`` judges what was written down.
"""
