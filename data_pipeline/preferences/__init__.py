"""Preference pairs for the judge: from scenes to a balanced set, each step a command.

make_pairs     good replies against spoilt ones, without any model
candidates     several replies to each context, from any model
labels         pairs of them, compared by a teacher in both orders
balance        the mix that a judge is trained on, with hard negatives where it lacks them
mining         why winners won, clustered into drafts of principles
"""
